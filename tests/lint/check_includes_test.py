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


class EachRule(unittest.TestCase):
    def run_on(self, changes, action):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {**TREE, **changes}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return action(root)

    def assert_caught(self, changes, part):
        faults = self.run_on(changes, check_includes.faults)
        self.assertEqual(len(faults), 1, faults)
        self.assertIn(part, faults[0])

    def test_a_clean_tree_passes(self):
        self.assertEqual(self.run_on({}, check_includes.faults), [])

    def test_core_must_not_include_graph(self):
        self.assert_caught({"core/a.cpp": '#include "graph/b.h"\n'}, "core must not include graph/b.h")

    def test_base_includes_nothing_of_ours(self):
        self.assert_caught({"base/x.h": '#pragma once\n#include "core/a.h"\n'}, "it may include nothing")

    def test_graph_must_not_include_hooks(self):
        self.assert_caught({"graph/b.cpp": '# include "hooks/c.h"\n'}, "graph must not include hooks/c.h")

    def test_the_library_must_not_include_its_umbrella(self):
        self.assert_caught({"graph/b.cpp": '#include "duet.h"\n'}, "umbrella")

    def test_an_include_that_only_the_compiler_could_find(self):
        self.assert_caught({"graph/b.cpp": '#include "duet/core/a.h"\n'}, "no file of ours")

    def test_a_source_that_includes_by_the_path_from_itself(self):
        self.assert_caught({"graph/b.cpp": '#include "../core/a.h"\n'}, 'write "core/a.h"')

    def test_a_public_header_that_includes_by_the_path_from_the_root(self):
        self.assert_caught({"graph/b.h": '#pragma once\n#include "core/a.h"\n'}, 'write "../core/a.h"')

    def test_fix_writes_includes_as_they_should_be(self):
        def fixed(root):
            check_includes.fix_spelling(root)
            return (root / "graph/b.h").read_text(), (root / "graph/b.cpp").read_text()

        changes = {"graph/b.h": '#pragma once\n#include "core/a.h"  // why\n', "graph/b.cpp": '#include "b.h"\n'}
        self.assertEqual(
            self.run_on(changes, fixed), ('#pragma once\n#include "../core/a.h"  // why\n', '#include "graph/b.h"\n')
        )

    def test_a_header_without_pragma_once(self):
        self.assert_caught({"core/detail/own.h": "#include <vector>\n"}, "#pragma once")

    def test_a_public_header_that_includes_a_private_one(self):
        self.assert_caught({"graph/b.h": '#pragma once\n#include "../core/detail/own.h"\n'}, "not public")

    def test_a_public_header_that_does_not_exist(self):
        self.assert_caught({"duet.h": TREE["duet.h"] + '#include "core/gone.h"\n'}, "there is no core/gone.h")

    def test_a_header_listed_twice(self):
        self.assert_caught({"duet.h": TREE["duet.h"] + '#include "core/a.h"\n'}, "2 times")

    def test_a_private_header_in_the_umbrella(self):
        changes = {"base/detail/own.h": "#pragma once\n", "duet.h": TREE["duet.h"] + '#include "base/detail/own.h"\n'}
        self.assert_caught(changes, "is private")

    def test_too_many_public_headers(self):
        many = {f"hooks/h{i}.h": "#pragma once\n" for i in range(check_includes.MAX_PUBLIC_HEADERS)}
        lines = "".join(f'#include "{name}"\n' for name in many)
        self.assert_caught({**many, "duet.h": TREE["duet.h"] + lines}, "public headers, at most")

    def test_a_preprocessor_conditional(self):
        self.assert_caught({"core/a.cpp": "#ifdef DUET_WITH_CUDA\n#endif\n"}, "choose by file")

    def test_a_long_file(self):
        self.assert_caught({"core/a.cpp": "\n" * (check_includes.MAX_LINES + 1)}, "lines, at most")


if __name__ == "__main__":
    unittest.main()
