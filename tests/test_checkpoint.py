"""One file of plain data: readable by torch alone, whole or not there, refused if damaged."""

from __future__ import annotations

import os
import pickle

import pytest
import torch

from opformer import checkpoint
from opformer._files import replacing
from opformer.checkpoint import FORMAT, load_checkpoint, save_checkpoint

STATE = {"weight": torch.arange(6.0).reshape(2, 3), "name": "x", "history": [{"epoch": 1}], "n": 3}


@pytest.fixture
def saved(tmp_path):
    save_checkpoint(tmp_path / "run" / "a.pt", STATE)
    return tmp_path / "run" / "a.pt"


def test_there_and_back(saved):
    state = load_checkpoint(saved)
    assert torch.equal(state.pop("weight"), STATE["weight"])
    assert state == {"format": FORMAT, "name": "x", "history": [{"epoch": 1}], "n": 3}


def test_torch_reads_it_without_trust(saved):
    assert torch.load(saved, weights_only=True)["name"] == "x"


def test_nothing_else_is_left_in_the_folder(saved):
    assert [f.name for f in saved.parent.iterdir()] == ["a.pt"]


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")
def test_others_may_read_it(saved):
    """A temporary file of mode 600 must not become the result."""
    plain = saved.with_name("plain")
    plain.touch()
    assert saved.stat().st_mode == plain.stat().st_mode


def test_a_failed_write_leaves_the_old_file(saved, monkeypatch):
    def half(state, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    before = saved.read_bytes()
    monkeypatch.setattr(checkpoint.torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(saved, {"n": 4})
    assert saved.read_bytes() == before
    assert [f.name for f in saved.parent.iterdir()] == ["a.pt"]


def test_replacing_is_all_or_nothing(tmp_path):
    path = tmp_path / "new" / "table.csv"
    with replacing(path) as temporary:
        assert temporary.parent == path.parent
        assert temporary.suffix == ".csv"
        temporary.write_text("1")
        assert not path.exists()
    assert path.read_text() == "1"
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(f"{1 // 0}")
    with pytest.raises(FileNotFoundError), replacing(path):
        pass  # nothing was written
    assert path.read_text() == "1"
    assert [f.name for f in path.parent.iterdir()] == ["table.csv"]


def test_missing(tmp_path):
    for path in (tmp_path / "no.pt", tmp_path):
        with pytest.raises(ValueError, match=f"{path.name}: no such checkpoint"):
            load_checkpoint(path)


@pytest.mark.parametrize("share", [0, 0.02, 0.5, 0.95])
def test_truncated(saved, share):
    data = saved.read_bytes()
    saved.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ValueError, match=r"a\.pt: not a checkpoint, or damaged \(.+\)") as caught:
        load_checkpoint(saved)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("start", [b"", b"PK\x03\x04", b"\x80\x02", b"\x80\x02}q\x00(X", b"cos\n"])
def test_garbage(saved, start):
    saved.write_bytes(start + bytes(range(256)) * 3)
    with pytest.raises(ValueError, match=r"a\.pt: not a checkpoint, or damaged"):
        load_checkpoint(saved)


def test_nothing_in_a_file_is_executed(saved):
    class Trap:
        def __reduce__(self):
            return exec, ("raise SystemExit",)

    torch.save({"format": 1, "trap": Trap()}, saved)
    with pytest.raises(ValueError, match=r"a\.pt: not a checkpoint"):
        load_checkpoint(saved)
    saved.write_bytes(pickle.dumps(Trap(), protocol=2))
    with pytest.raises(ValueError, match=r"a\.pt: not a checkpoint"):
        load_checkpoint(saved)


@pytest.mark.parametrize(
    "other", [torch.ones(3), [1, 2], {"weight": torch.ones(1)}, {"format": "x"}]
)
def test_another_file_of_torch(saved, other):
    torch.save(other, saved)
    with pytest.raises(ValueError, match=r"a\.pt: not a checkpoint of opformer"):
        load_checkpoint(saved)


def test_a_newer_format(saved):
    torch.save({"format": FORMAT + 1}, saved)
    with pytest.raises(
        ValueError, match=rf"a\.pt: format {FORMAT + 1} is newer .* update opformer"
    ):
        load_checkpoint(saved)
