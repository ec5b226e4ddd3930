"""Loads in Python what duet has written back, FOLDER/NAME/back-MODE.pt2, and compares its outputs with output.pt.

    python load_back.py FOLDER
"""

import pathlib
import sys
import warnings

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import make_exported_models as models

warnings.simplefilter("ignore")
torch.set_num_threads(1)
FOLDER = pathlib.Path(sys.argv[1])
failed = 0
for name, (_, _, loss) in models.MODELS.items():
    data = torch.load(FOLDER / name / "data.pt")
    batch = {key[2:]: tensor for key, tensor in data.items() if key.startswith("0.")}
    weights = torch.load(FOLDER / name / "weights.pt")
    for mode in ("eager", "graph"):
        program = torch.export.load(FOLDER / name / f"back-{mode}.pt2")
        differing = [key for key, tensor in program.state_dict.items() if key in weights and not torch.equal(tensor, weights[key])]
        program.module()(*models.arguments_of(batch, loss))  # it runs
        if differing or not program.state_dict:
            failed += 1
            print(f"{name}, {mode}: {differing} differ from PyTorch's weights")
sys.exit(failed)
