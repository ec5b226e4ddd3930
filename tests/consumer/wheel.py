"""The wheel on a Python that has torch: wheel.py SOURCES PROGRAM WORK [WHEEL]. Builds it, installs it, and uses its three parts.

The package trains; the program trains as PROGRAM, that of the build, does, to the last bit; a project in C++ finds the library.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import torch

SOURCES, PROGRAM, WORK = map(pathlib.Path, sys.argv[1:4])

PACKAGE = """
import duet, torch
model = torch.nn.Linear(4, 2)
step = duet.graph_step(model, lambda m, b: m(b["x"]).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1))
losses = [float(step({"x": torch.ones(3, 4)})) for _ in range(5)]
assert losses[-1] < losses[0], losses
print(duet.cmake_prefix_path)
"""


def run(*command, **options):
    print("+", *command, flush=True)
    return subprocess.run(command, check=True, text=True, **options)


def train(program, name, environment):
    work = WORK / name
    run(program, "train", SOURCES / "examples" / "fashion_mnist.yaml", "--mode", "graph", f"work_dir={work}",
        "trainer.max_epochs=1", "data.train.limit=640", "data.val.limit=128", env=environment)
    return next(work.glob("checkpoints/step-*/model.safetensors")).read_bytes()


def build():
    cores = str(os.cpu_count())
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", WORK / "dist", SOURCES,
        env={**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": cores})
    return next((WORK / "dist").iterdir())


def main():
    shutil.rmtree(WORK, ignore_errors=True)
    wheel = sys.argv[4] if len(sys.argv) > 4 else build()
    run(sys.executable, "-m", "venv", WORK / "venv")
    python = WORK / "venv" / "bin" / "python"
    packages = next((WORK / "venv" / "lib").iterdir()) / "site-packages"
    # The torch of this Python, elsewhere than beside the package.
    (packages / "torch.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]) + "\n")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)

    # No programs of this machine's but the shell's: what the wheel needs, it has.
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(WORK), "OMP_NUM_THREADS": "1"}
    prefix = run(python, "-c", PACKAGE, env=bare, stdout=subprocess.PIPE).stdout.strip()
    libraries = {path.name for path in (pathlib.Path(prefix) / "lib" / "bundled").iterdir()}
    for start in ("libpng", "libjpeg", "libyaml-cpp", "libz"):
        assert any(name.startswith(start) for name in libraries), f"no {start} among {sorted(libraries)}"
    assert train(WORK / "venv" / "bin" / "duet", "of_wheel", bare) == train(PROGRAM, "of_build", {**os.environ, **bare})

    for beside in ("torch", "nvidia"):  # as pip has them
        (packages / beside).symlink_to(pathlib.Path(torch.__file__).parents[1] / beside)
    run("cmake", "-S", SOURCES / "tests" / "consumer", "-B", WORK / "consumer", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", WORK / "consumer")
    run(WORK / "consumer" / "consumer")


main()
