#!/usr/bin/env python3
"""Compiles duet's kernels, and what chooses them, for aarch64: none of x86's may be among them. Nothing is run.

usage: aarch64.py SOURCE BUILD WORK      BUILD: a configured build, whose packages are used; ends with 77 where clang++
                                         or the headers of libc6-dev-arm64-cross, libstdc++-12-dev-arm64-cross are missing
"""

import pathlib
import re
import shutil
import subprocess
import sys

TARGET = "aarch64-linux-gnu"
OFF = ("CLI", "TESTS", "EXAMPLES", "PYTHON", "BENCHMARKS")


def main():
    source, build, work = map(pathlib.Path, sys.argv[1:])
    compiler = shutil.which("clang++-19") or shutil.which("clang++")
    if compiler is None or not pathlib.Path(f"/usr/{TARGET}/include/c++").is_dir():
        print(f"no clang++, or no C++ headers for {TARGET}")
        sys.exit(77)
    # This machine's packages will do: their headers are the same, and nothing is linked.
    wanted = re.compile(r"((?:spdlog|nlohmann_json|fmt)_DIR|(?:ZLIB|PNG|JPEG)_\w+|DUET_(?:TORCH|XXHASH|GLOO)\w*):\w+=.+")
    packages = filter(wanted.fullmatch, (build / "CMakeCache.txt").read_text().splitlines())
    shutil.rmtree(work, ignore_errors=True)
    subprocess.run(
        ["cmake", "-G", "Ninja", "-S", source, "-B", work, f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Debug",
         f"-DCMAKE_CXX_COMPILER_TARGET={TARGET}", "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
         "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", "-DDUET_PRECOMPILE=OFF", "-DDUET_WERROR=ON",
         *(f"-D{line}" for line in packages), *(f"-DDUET_BUILD_{part}=OFF" for part in OFF)], check=True)
    names = subprocess.run(["ninja", "-C", work, "-t", "targets", "all"], stdout=subprocess.PIPE, text=True, check=True)
    kernels = re.findall(r"^(\S*graph_kernels\S*\.o|\S*graph/kernels/\S+\.o):", names.stdout, re.MULTILINE)
    text = "".join(path.read_text() for path in work.rglob("unity_of_graph_kernels*.cxx")) + "".join(kernels)
    assert "no_avx_kernels.cpp" in text, kernels
    subprocess.run(["ninja", "-C", work, *kernels], check=True)
    print(f"{len(kernels)} objects for {TARGET}")


if __name__ == "__main__":
    main()
