"""The parts of the proof on a machine."""

import dataclasses
import os
import pathlib
import subprocess
import sys

from parts import Part

HERE = pathlib.Path(__file__).resolve().parent
SETTINGS = {  # of Device.GraphGivesTheBitsOfEager
    "AdamW": "AdamW", "SgdMomentum": "SGD with momentum, clipping", "Accumulate3": "three micro-batches", "Bf16": "bf16",
    "Fp16": "fp16, loss scaling", "Ema": "EMA", "Splits": "hooks between graphs",
    "Scheduled": "numbers that follow schedules", "Dampened": "SGD with dampening, fp16"}
MODELS = ["MLP 64-64-10, batch 8", "CNN 28x28, batch 64", "GPT d128 L4, 16x64", "GPT d384 L6, 16x256",
          "GPT-2 124 M, 8x1024, bf16", "ResNet-50 (TorchScript), 32x224x224"]
QUICK_MODELS = [MODELS[0], MODELS[1], MODELS[2], MODELS[4]]
REHEARSED_MODELS = [MODELS[0], MODELS[2]]  # the others need cuDNN, or compute for long
QUICK_TESTS = ["optim", "hooks", "trainers", "metrics", "weights"]
TESTS = ["core", *QUICK_TESTS, "graph", "fuzz", "script", "sinks", "cli", "distributed", "faults"]
FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")
VALUES = "kernels do nothing, so that no value means anything"
TIMES = "kernels do nothing, so that no time means anything"


def ask(*command):
    """What it prints; nothing where it is not there, fails or hangs."""
    try:
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


@dataclasses.dataclass
class Machine:
    root: pathlib.Path
    build: pathlib.Path
    folder: pathlib.Path  # for what the parts write
    quick: bool
    stand_in: bool

    def __post_init__(self):
        venv = self.root / ".venv/bin/python"
        self.python = str(venv) if venv.exists() else sys.executable
        deepest_first = sorted(os.walk(self.build), key=lambda entry: -entry[0].count(os.sep))  # tests install copies there
        self.files = {name: pathlib.Path(folder, name) for folder, _, names in deepest_first for name in names
                      if "CMakeFiles" not in folder}
        self.pack = self.build / "run"  # what scripts/pack has put together is run by it
        if self.pack.exists():
            where = ask(self.python, "-c", "import os, torch; print(os.path.dirname(torch.__file__))").strip()
            os.environ["DUET_TORCH"] = os.environ.get("DUET_TORCH") or where
        self.torch = [] if self.stand_in else self.ask_torch()
        lines = [line.split(None, 1) for line in ask(*self.program("duet"), "doctor").splitlines()]
        self.doctor = {line[0]: line[1] for line in lines if len(line) == 2}
        # Those that a process sees: CUDA_VISIBLE_DEVICES may hide some, and of MIG's parts it gets one.
        self.gpus = 0 if self.stand_in else int(self.doctor.get("cuda_devices", 0))

    def program(self, name):
        """The command that runs it; one that fails and names it where there is none."""
        if self.pack.exists():
            return [str(self.pack), name]
        return [str(self.files.get(name, self.build / name))]

    def stand_in_library(self):
        return self.files.get("libcuda.so.1", self.build / "libcuda.so.1")

    def environment(self):
        own = {"OMP_NUM_THREADS": "1", "DUET_DEVICE_STEPS": "60" if self.quick else "500", "PYTHONDONTWRITEBYTECODE": "1",
               "DUET_REFERENCES": str(self.folder / "references"), "PYTHONUNBUFFERED": "1"}
        if self.stand_in:
            own |= {"LD_PRELOAD": str(self.stand_in_library()), "DUET_REHEARSAL": "1", "DUET_DEVICE_STEPS": "24"}
        return {**os.environ, **own}

    def ask_torch(self):
        """Version of PyTorch and its CUDA, empty where Python has none."""
        return ask(self.python, "-c", "import torch; print(torch.__version__, torch.version.cuda)").split()

    def problem(self):
        """Why no part can pass here; empty: it may."""
        if self.stand_in:
            return ""
        if self.doctor.get("cuda_devices") == "0":
            driver = ", ".join(dict.fromkeys(ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()))
            return (f"LibTorch {self.doctor.get('libtorch', '')} sees no GPU (driver {driver or 'unknown'}, CUDA_VISIBLE_DEVICES="
                    f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')}), expected one; install a driver as new as the CUDA of LibTorch"
                    " asks for, or show this shell a GPU")
        return ""

    def describe(self):
        """What the figures depend on."""
        found = {"device": "stand-in for the CUDA runtime"} if self.stand_in else {}
        if not self.stand_in:
            kinds = ask("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").splitlines()
            found["GPU, driver, memory"] = f"{'; '.join(dict.fromkeys(kinds))} (x {self.gpus})"
        cpu = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        found["CPU"] = next((line.split(":")[1].strip() for line in cpu if line.startswith("model name")), "unknown")
        found |= {name: self.doctor[name] for name in ("duet", "libtorch") if name in self.doctor}
        if self.torch:
            found["PyTorch, CUDA of the wheel"] = ", ".join(self.torch)
        return found


def device_tests(machine):
    def tests(name, pattern, limit, nothing=""):
        command = [*machine.program("duet_device_tests"), f"--gtest_filter={pattern}"]
        return Part(name, command, limit, runs_tests=True, means_nothing=nothing if machine.stand_in else "")

    for setting, name in SETTINGS.items():
        yield tests(f"both modes bit by bit: {name}", f"*Device.GraphGivesTheBitsOfEager/*{setting}", 150, VALUES)
    yield tests("a replayed step waits for nothing", "*Device.AReplayedStepWaitsForNothing/*:Waits.*", 120)
    yield tests("changing shapes", "DeviceShapes.*", 120, VALUES)
    yield tests("out of memory", "*DeviceMemory.*:DeviceCapture.*", 120, VALUES)
    yield tests("refused captures", "*DeviceRefusal.*", 120, VALUES)
    yield Part("an error at every call of a capture (over the stand-in)", machine.program("duet_cuda_tests"), 300,
               {"LD_LIBRARY_PATH": f"{machine.stand_in_library().parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"},
               runs_tests=True, skipped="ctest has it" if machine.stand_in else "", alone=False)


def script(machine, name, *words):
    return [machine.python, str(HERE / name), *map(str, words)]


def ranks(machine):
    nccl = "NCCL needs a GPU" if machine.stand_in else ""
    pattern = "--gtest_filter=DistributedProgram.OfAWorldOfOneWithACommunicatorHoldsItsCollectives"
    yield Part("NCCL: a world of one with a communicator", [*machine.program("duet_distributed_tests"), pattern], 200,
               runs_tests=True, skipped=nccl, alone=False)
    alone = "this machine has one GPU" if machine.gpus == 1 else ""
    yield Part("NCCL: all GPUs", example(machine, "char_gpt", "--ranks", machine.gpus), 300, skipped=nccl or alone, alone=False)


def example(machine, name, *words):
    steps = 10 if machine.stand_in else 100 if machine.quick else 400
    config = machine.root / f"examples/{name}.yaml"
    folder = machine.folder / "-".join(map(str, [name, *words]))
    return script(machine, "examples.py", "--folder", folder, "--config", config, "--steps", steps, *words, "--",
                  *machine.program("duet"))


def examples(machine):
    no_cudnn = "cuDNN needs a GPU" if machine.stand_in else ""
    no_pictures = "" if FASHION_MNIST.exists() else f"{FASHION_MNIST} is not there (Debian's dataset-fashion-mnist)"
    nothing = VALUES if machine.stand_in else ""
    for config in sorted((machine.root / "examples").glob("*.yaml")):
        skipped = "" if config.stem == "char_gpt" else no_cudnn or no_pictures
        yield Part(f"example {config.stem}", example(machine, config.stem), 300, means_nothing=nothing, skipped=skipped,
                   alone=False)
    few = {"04_ppo": ["512"], "05_gan": ["40"]} if machine.stand_in else {"04_ppo": ["20000"], "05_gan": ["600"]}
    for name in ("01_embed", "02_own_hook", "03_distributed", "04_ppo", "05_gan"):
        words = [] if name in ("02_own_hook", "03_distributed") else ["--modes"]
        command = script(machine, "examples.py", *words, "--", *machine.program(name), "MODE", *few.get(name, []))
        yield Part(f"example {name}", command, 200, means_nothing=nothing, alone=False)
    backbone = machine.folder / "backbone.pt"
    exporter = machine.root / "examples/06_finetune/export_backbone.py"
    command = script(machine, "examples.py", "--modes", "--first", machine.python, exporter, backbone, "--",
                     *machine.program("06_finetune"), "MODE", backbone)
    no_torch = "" if machine.torch else "its backbone needs PyTorch for Python"
    yield Part("example 06_finetune", command, 300, skipped=no_cudnn or no_pictures or no_torch, alone=False)


def kill(machine):
    yield Part("killed in the middle of captured steps", script(
        machine, "kill.py", "--folder", machine.folder / "kill", "--kills", 2 if machine.stand_in or machine.quick else 6,
        *(["--small"] if machine.stand_in else []), "--", *machine.program("duet")), 240,
        means_nothing=VALUES if machine.stand_in else "", alone=False)


def times(machine):
    names = REHEARSED_MODELS if machine.stand_in else QUICK_MODELS if machine.quick else MODELS
    peers = [] if not machine.torch or machine.stand_in else ["torch"] if machine.quick else ["torch", "compile"]
    for name in names:
        needs_python = "the model comes from PyTorch for Python" if "TorchScript" in name and not machine.torch else ""
        words = ["--folder", machine.folder, "--repetitions", 3 if machine.quick else 5, "--peers", ",".join(peers)]
        command = script(machine, "model_times.py", *words, name, "--", *machine.program("duet_device_times"))
        yield Part(f"times of {name}", command, 240, means_nothing=TIMES if machine.stand_in else "", skipped=needs_python)


def test_programs(machine):
    skipped = "ctest has it" if machine.stand_in else ""
    made = machine.folder / "references"
    for kind, name in (("optim", "make_references.py"), ("metrics", "make_references.py"), ("script", "make_script_models.py")):
        yield Part(f"references of {kind}", [machine.python, str(machine.root / "tests" / kind / name), str(made / kind)], 200,
                   skipped=skipped or ("" if machine.torch else "they come from PyTorch for Python"))
    for name in QUICK_TESTS if machine.quick else TESTS:
        # Their ranks are forked, and a forked process has no CUDA.
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if name in ("distributed", "faults") else {}
        yield Part(f"tests of {name}", machine.program(f"duet_{name}_tests"), 600, hidden, runs_tests=True, skipped=skipped,
                   alone=False)
    package = machine.build / "python"
    missing = "" if machine.torch and (package / "duet").exists() else "no package of duet for Python in " + str(package)
    if not machine.quick:
        command = [machine.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(machine.root / "tests/python")]
        environment = {"PYTHONPATH": str(package), "DUET_PROGRAM": machine.program("duet")[-1]}
        yield Part("tests of the Python package", command, 600, environment, skipped=skipped or missing, alone=False)


def parts(machine):
    for kind in (device_tests, ranks, kill, examples, times, test_programs):
        yield from kind(machine)
