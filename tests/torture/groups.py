"""Ranks of one run, as forks that start in milliseconds."""

import json

import ddp
from torture import leftovers, read_all


def start_group(torture, words, ranks=2, program="duet", of_rank=lambda _: {}):
    """With the variables of a launcher, and for each rank those that of_rank(rank) gives."""
    launch = {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ddp.free_port()}
    return [torture.server(rank, program).popen(
        ["duet", *words], cwd=torture.folder, env={**launch, "RANK": rank, "LOCAL_RANK": rank, **of_rank(rank)})
        for rank in range(ranks)]


def end_group(processes, seconds=120):
    """Their exit codes and what they have said."""
    texts = [read_all(process, seconds) for process in processes]
    return [process.wait(60) for process in processes], texts


class Group:
    """Two ranks of one run, which is started again and again."""

    def __init__(self, torture, config, name):
        self.torture, self.config, self.work_dir = torture, config, torture.folder / name
        self.checkpoints = self.work_dir / "checkpoints"

    def start(self, mode="eager", **of_rank_0):
        words = ["train", self.config, f"work_dir={self.work_dir}", "--json", f"{self.work_dir}.json", "--mode", mode,
                 "--resume", "auto", "data.train.batch_size=4"]
        return start_group(self.torture, words, of_rank=lambda rank: of_rank_0 if rank == 0 else {})

    def finish(self, expected=None, mode="eager"):
        """Runs to the end; the hash of its weights, which must be the expected one, if any."""
        codes, texts = end_group(self.start(mode))
        self.torture.require(codes == [0, 0], "two ranks did not end well", "".join(texts))
        found = json.loads(self.work_dir.with_name(f"{self.work_dir.name}.json").read_text())["weights_hash"]
        self.torture.require(expected in (None, found), "other weights than unbroken", "".join(texts))
        self.torture.require(not leftovers(self.checkpoints), f"left behind: {leftovers(self.checkpoints)}")
        return found
