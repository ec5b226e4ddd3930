"""R4: a hostile file of any kind ends in a message, by no signal, and takes no more memory than docs/security.md states.

Damaged files are tests of their own (`core`, `weights`), and so are fuzzers.
"""

import subprocess

import hostile_files
from torture import FORBIDDEN

FLOOR_MIB = 64  # in place of the 256 MiB of the default: the files stay small
SLACK_KIB = 48 << 10  # what the allocator keeps, and the text of the file itself
TIMES = {"pt": 24, "zip": 16, "safetensors": 20, "body_of_manifest": 24, "values": 24, "json": 24, "yaml": 0, "saved_config": 0,
         "idx": 66, "npy": 2, "csv": 26, "image": 66, "mask": 66, "log": 32}
YAML_KIB = 300 << 10  # of a YAML text, whose limits do not depend on its size


class Reader:
    """The process that reads, and the most memory that it has taken so far."""

    def __init__(self, torture):
        self.torture, self.process, self.last = torture, None, 0

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.process, self.last = None, 0

    def ask(self, kind, path):
        if self.process is None:
            self.process = subprocess.Popen(
                ["env", f"DUET_FILE_MEMORY={FLOOR_MIB}MiB", self.torture.built("duet_read_foreign")], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        self.process.stdin.write(f"{kind} {path}\n")
        line = self.process.stdout.readline()
        if not line:
            _, text = self.process.communicate()
            self.torture.require(False, f"{kind}: the reader ended with {self.process.returncode}", text[-2000:])
        peak, answer, said = line.split(" ", 2)
        self.torture.require(not FORBIDDEN.search(said), f"{kind}: a message that no user may see", said)
        return int(peak), answer, said.strip()

    def measured(self, kind, path, size):
        """Refused or loaded, within the memory of its kind."""
        before = self.last or self.ask("csv", "/nowhere")[0]
        self.last, answer, said = self.ask(kind, path)
        most = SLACK_KIB + ((FLOOR_MIB << 10) + TIMES[kind] * size // 1024 if TIMES[kind] else YAML_KIB)
        self.torture.require(self.last - before <= most,
                             f"{kind}: {size} bytes took {self.last - before} KiB, expected at most {most}", said)
        if self.last - before > 32 << 10:  # what it keeps would hide what the next one takes
            self.close()
        return answer


def run(torture):
    reader, count, refused = Reader(torture), torture.count(50, 1000), 0
    path = torture.folder / "hostile"
    try:
        for i in range(count):
            torture.case = f"hostile file {i}"
            kind, content = hostile_files.one(torture.random)
            path.write_bytes(content)
            refused += reader.measured(kind, path, len(content)) == "refused"
    finally:
        reader.close()
    return f"{count}/{count} hostile files within their memory, {refused} refused"
