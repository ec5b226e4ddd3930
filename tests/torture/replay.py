"""What a disk may hold after a crash: the calls that preload.cpp has logged, less some of those that nothing synced.

A file's contents are on the disk once it was synced, a folder's names once the folder was. Of what came after, any of a
file's writes may be missing, and of a folder's changes any last ones: file systems keep the order of those.
"""

import dataclasses
import pathlib


@dataclasses.dataclass
class Record:
    op: str
    inode: int
    number: int
    first: str
    second: str
    data: bytes


def read_log(path):
    content, records, at = path.read_bytes(), [], 0
    while at < len(content):
        end = content.index(b"\n", at)
        op, inode, number, first, second, size = content[at:end].decode().split("\t")
        at = end + 1 + int(size)
        records.append(Record(op, int(inode), int(number), first, second, content[end + 1:at]))
    return records


class File:
    def __init__(self):
        self.synced, self.writes = b"", []

    def changed(self, writes):
        content = bytearray(self.synced)
        for place, data in writes:
            if data is None:  # its size
                content[place:] = bytes(max(0, place - len(content)))
                continue
            content.extend(bytes(max(0, place - len(content))))
            content[place:place + len(data)] = data
        return bytes(content)

    def sync(self):
        self.synced, self.writes = self.changed(self.writes), []


def apply(names, change):
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Folder:
    def __init__(self):
        self.now, self.synced, self.changes = {}, {}, []

    def change(self, **names):
        """All of these at once; None: the name is gone."""
        apply(self.now, names)
        self.changes.append(names)

    def sync(self):
        self.synced, self.changes = dict(self.now), []

    def kept(self, count):
        names = dict(self.synced)
        for change in self.changes[:count]:
            apply(names, change)
        return names


class Disk:
    """The folder `root` while the records are replayed. It begins empty, and synced."""

    def __init__(self, root):
        self.root, self.top, self.by_inode = pathlib.PurePath(root), Folder(), {}

    def folder_of(self, path):
        node = self.top
        for part in pathlib.PurePath(path).relative_to(self.root).parts[:-1]:
            node = node.now[part]
        return node, pathlib.PurePath(path).name

    def play(self, record):
        if not record.first:
            return self.play_on_file(record, self.by_inode.get(record.inode, self.top))
        if pathlib.PurePath(record.first) == self.root:  # it is there now
            self.by_inode[record.inode] = self.top
            return None
        folder, name = self.folder_of(record.first)
        if record.op == "rename":  # no save renames into another folder
            folder.change(**{name: None, pathlib.PurePath(record.second).name: folder.now[name]})
        elif record.op == "remove":
            folder.change(**{name: None})
        else:
            if record.op == "mkdir" or name not in folder.now:
                folder.change(**{name: Folder() if record.op == "mkdir" else File()})
            self.by_inode[record.inode] = folder.now[name]
            if record.number:
                folder.now[name].writes.append((0, None))
        return None

    @staticmethod
    def play_on_file(record, node):
        """Of a file or folder that is open."""
        if record.op == "write":
            node.writes.append((record.number, record.data))
        elif record.op == "truncate" or (record.op == "reserve" and record.number > len(node.changed(node.writes))):
            node.writes.append((record.number, None))
        elif record.op == "sync":
            node.sync()

    def write(self, path, random, loses_all, folder=None):
        """What is left, below `path`."""
        path.mkdir()
        folder = folder or self.top
        for name, node in folder.kept(0 if loses_all else random.randint(0, len(folder.changes))).items():
            if isinstance(node, Folder):
                self.write(path / name, random, loses_all, node)
                continue
            writes = [] if loses_all else [write for write in node.writes if random.random() < 0.5]
            (path / name).write_bytes(node.changed(writes))
