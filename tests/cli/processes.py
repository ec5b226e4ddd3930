"""Processes of this machine, as /proc shows them."""

import os
import pathlib
import signal


def stat_of(pid):
    """State, parent, ... of the start; nothing of one that has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []
    return fields if fields[0] not in "ZX" else []


def is_alive(pid):
    return bool(stat_of(pid))


def children_of(parent):
    """Those that it has started, the oldest first."""
    stats = ((int(name), stat_of(name)) for name in os.listdir("/proc") if name.isdigit())
    found = [(int(fields[19]), pid) for pid, fields in stats if fields and int(fields[1]) == parent]
    return [pid for _, pid in sorted(found)]


def all_below(pid):
    """Processes that it has started, after those that they have."""
    return [below for child in children_of(pid) for below in (*all_below(child), child)]


def kill(pid, number):
    """False if it has ended by itself."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def end(process):
    """With those whom it has started: some of them would run for ever."""
    if process.poll() is None:
        for pid in [*all_below(process.pid), process.pid]:
            kill(pid, signal.SIGKILL)
