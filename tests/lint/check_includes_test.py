#!/usr/bin/env python3
"""Each rule of check_includes.py catches the fault that it is for."""

import pathlib
import tempfile
import unittest

import check_includes

TREE = {
    "duet.h": '#pragma once\n#include "core/a.h"  // a\n#include "graph/b.h"\n',
    "base/x.h": "#pragma once\n#include <vector>\n",
    "core/a.h": "#pragma once\n#include <vector>\n",
    "core/a.cpp": '#include "core/a.h"\n#include "base/x.h"\n',
    "core/detail/own.h": '#pragma once\n#include "core/a.h"\n',
    "graph/b.h": '#pragma once\n#include "../core/a.h"\n',
    "graph/b.cpp": '#include "graph/b.h"\n#include "core/detail/own.h"\n',
    "hooks/c.h": "#pragma once\n",
    "cli/main.cpp": '#include "duet.h"\n#include "hooks/c.h"\n',
}


OWN = {"base/detail/own.h": "#pragma once\n", "duet.h": TREE["duet.h"] + '#include "base/detail/own.h"\n'}
MANY = {f"hooks/h{i}.h": "#pragma once\n" for i in range(check_includes.MAX_PUBLIC_HEADERS)}
# A change of the tree, and what is said of it.
FAULTS = [
    ({"core/a.cpp": '#include "graph/b.h"\n'}, "core must not include graph/b.h"),
    ({"base/x.h": '#pragma once\n#include "core/a.h"\n'}, "it may include nothing"),
    ({"graph/b.cpp": '# include "hooks/c.h"\n'}, "graph must not include hooks/c.h"),
    ({"graph/b.cpp": '#include "duet.h"\n'}, "umbrella"),
    ({"graph/b.cpp": '#include "duet/core/a.h"\n'}, "no file of ours"),
    ({"graph/b.cpp": '#include "../core/a.h"\n'}, 'write "core/a.h"'),
    ({"graph/b.h": '#pragma once\n#include "core/a.h"\n'}, 'write "../core/a.h"'),
    ({"core/detail/own.h": "#include <vector>\n"}, "#pragma once"),
    ({"graph/b.h": '#pragma once\n#include "../core/detail/own.h"\n'}, "not public"),
    ({"duet.h": TREE["duet.h"] + '#include "core/gone.h"\n'}, "there is no core/gone.h"),
    ({"duet.h": TREE["duet.h"] + '#include "core/a.h"\n'}, "2 times"),
    (OWN, "is private"),
    ({**MANY, "duet.h": TREE["duet.h"] + "".join(f'#include "{name}"\n' for name in MANY)}, "public headers, at most"),
    ({"core/a.cpp": "#ifdef DUET_WITH_CUDA\n#endif\n"}, "choose by file"),
    ({"core/a.cpp": "\n" * (check_includes.MAX_LINES + 1)}, "lines, at most"),
]


class EachRule(unittest.TestCase):
    def run_on(self, changes, action):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {**TREE, **changes}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return action(root)

    def test_each_fault_is_found_alone_and_a_clean_tree_has_none(self):
        self.assertEqual(self.run_on({}, check_includes.faults), [])
        for changes, part in FAULTS:
            faults = self.run_on(changes, check_includes.faults)
            self.assertEqual(len(faults), 1, (part, faults))
            self.assertIn(part, faults[0])

    def test_fix_writes_includes_as_they_should_be(self):
        def fixed(root):
            check_includes.fix_spelling(root)
            return (root / "graph/b.h").read_text(), (root / "graph/b.cpp").read_text()

        changes = {"graph/b.h": '#pragma once\n#include "core/a.h"  // why\n', "graph/b.cpp": '#include "b.h"\n'}
        self.assertEqual(
            self.run_on(changes, fixed), ('#pragma once\n#include "../core/a.h"  // why\n', '#include "graph/b.h"\n')
        )


if __name__ == "__main__":
    unittest.main()
