"""Ranks of one run, as forks that start in milliseconds."""

import ddp
from torture import read_all


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
