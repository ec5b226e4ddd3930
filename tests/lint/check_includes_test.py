#!/usr/bin/env python3
"""Each rule of check_includes.py catches the fault that it is for."""

import pathlib
import tempfile
import unittest

import check_includes

TREE = {
    "CMakeLists.txt": "",
    "duet.h": "#pragma once\n#include "core/a.h"\n#include <duet/graph/b.h>\n",
    "core/CMakeLists.txt": "target_sources(duet PRIVATE a.cpp)\nduet_headers(a.h)\n",
    "core/a.h": "#pragma once\n#include <vector>\n",
    "core/a.cpp": "#include "core/a.h"\n",
    "graph/CMakeLists.txt": "target_sources(duet PRIVATE b.cpp)\nduet_headers(b.h)\n",
    "graph/b.h": "#pragma once\n#include "core/a.h"\n",
    "graph/private.h": "#pragma once\n",
    "graph/b.cpp": "#include "graph/b.h"\n#include <duet/graph/private.h>\n",
    "cli/CMakeLists.txt": "add_library(duet_cli main.cpp)\n",
    "cli/main.cpp": "#include "duet.h"\n",
}


class EachRule(unittest.TestCase):
    def faults_with(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {**TREE, **changes}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return check_includes.faults(root)

    def assert_caught(self, changes, part):
        faults = self.faults_with(changes)
        self.assertEqual(len(faults), 1, faults)
        self.assertIn(part, faults[0])

    def test_a_clean_tree_passes(self):
        self.assertEqual(self.faults_with({}), [])

    def test_core_must_not_include_graph(self):
        self.assert_caught({"core/a.cpp": "#include "graph/b.h"\n"}, "core must not include duet/graph/b.h")

    def test_graph_must_not_include_eager(self):
        self.assert_caught({"graph/b.cpp": "#include "eager/c.h"\n"}, "graph must not include")

    def test_the_library_must_not_include_hooks(self):
        self.assert_caught({"graph/b.cpp": "# include <duet/hooks/c.h>\n"}, "graph must not include")

    def test_the_library_must_not_include_its_umbrella(self):
        self.assert_caught({"graph/b.cpp": "#include "duet.h"\n"}, "umbrella")

    def test_quoted_includes(self):
        self.assert_caught({"graph/b.cpp": '#include "private.h"\n'}, "write <duet/...>")

    def test_a_header_without_pragma_once(self):
        self.assert_caught({"graph/private.h": "#include <vector>\n"}, "#pragma once")

    def test_a_public_header_that_includes_a_private_one(self):
        self.assert_caught({"graph/b.h": "#pragma once\n#include "graph/private.h"\n"}, "not public")

    def test_a_public_header_that_does_not_exist(self):
        lists = "target_sources(duet PRIVATE a.cpp)\nduet_headers(a.h gone.h)\n"
        umbrella = TREE["duet.h"] + "#include "core/gone.h"\n"
        self.assert_caught({"core/CMakeLists.txt": lists, "duet.h": umbrella}, "no such file")

    def test_a_public_header_missing_in_the_umbrella(self):
        self.assert_caught({"duet.h": "#pragma once\n#include "core/a.h"\n"}, "lacks the public header graph/b.h")

    def test_a_header_listed_twice(self):
        self.assert_caught({"duet.h": TREE["duet.h"] + "#include "core/a.h"\n"}, "2 times")

    def test_a_private_header_in_the_umbrella(self):
        self.assert_caught({"duet.h": TREE["duet.h"] + "#include "graph/private.h"\n"}, "no duet_headers()")

    def test_a_source_that_nobody_builds(self):
        self.assert_caught({"core/forgotten.cpp": "\n"}, "no CMakeLists.txt names it")

    def test_a_preprocessor_conditional(self):
        self.assert_caught({"core/a.cpp": "#ifdef DUET_WITH_CUDA\n#endif\n"}, "choose by file")

    def test_a_long_file(self):
        self.assert_caught({"core/a.cpp": "\n" * (check_includes.MAX_LINES + 1)}, "lines, at most")


if __name__ == "__main__":
    unittest.main()
