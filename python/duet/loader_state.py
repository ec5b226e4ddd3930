"""The state of a loader that has one, as bytes of a checkpoint: nested tensors, numbers and texts."""

import io

import torch

from . import _duet


def saved(loader):
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    bytes = torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)
    _read(loader, bytes)  # rather now than on the day of the resume
    return bytes


def load(loader, bytes):
    loader.load_state_dict(_read(loader, bytes))


def _read(loader, bytes):
    try:
        return torch.load(io.BytesIO(bytes.numpy().tobytes()), weights_only=True)
    except Exception as error:
        reason = str(error).partition("WeightsUnpickler error: ")[2].partition("\n")[0] or str(error)
        raise _duet.CheckpointError(
            f"[Trainer] found a state_dict() of {type(loader).__name__} that a checkpoint cannot hold ({reason}), expected nested "
            "tensors, numbers and texts; convert the rest, NumPy's arrays with torch.from_numpy()"
        ) from error
