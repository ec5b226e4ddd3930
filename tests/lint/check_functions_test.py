#!/usr/bin/env python3
"""check_functions.py sees what a reader sees."""

import unittest

from check_functions import functions_of


def seen(text):
    return [(head.split("(")[0].split()[-1], lines, parameters) for head, _, lines, parameters in functions_of(text)]


class Functions(unittest.TestCase):
    def test_lines_and_parameters(self):
        self.assertEqual(seen("int f(int a, std::map<int, int> b = {{1, 2}}) {\n  return a;\n}\n"), [("f", 3, 2)])

    def test_methods_and_constructors_with_their_members(self):
        text = "class A : public B {\n public:\n  A(int a, int b) : x_{a}, y_(b), z_{b} {\n    g();\n  }\n  void h() const override {}\n  int x_{1};\n};\n"
        self.assertEqual(seen(text), [("A", 3, 2), ("h", 1, 0)])

    def test_braces_in_strings_and_comments_do_not_count(self):
        self.assertEqual(seen('void f() {\n  g("{");  // }\n  h(R"(}})", \'{\');\n}\nvoid k() {}\n'), [("f", 4, 0), ("k", 1, 0)])

    def test_lambdas_and_blocks_belong_to_their_function(self):
        self.assertEqual(seen("void f(F g) {\n  run([&](int a, int b) {\n    if (a) { g(); }\n  });\n}\n"), [("f", 5, 1)])

    def test_tables_and_types_are_no_functions(self):
        text = "namespace a {\nconst std::vector<P> kAll = {\n  {1, f(2)},\n};\nstruct S { int a = 1; };\nenum class E { kA };\n}\n"
        self.assertEqual(seen(text), [])

    def test_templates_operators_and_tests(self):
        text = "template <class T, class U>\nbool operator()(T a, U b) const {\n}\nTEST_P(A, B) {\n}\n"
        self.assertEqual([(lines, parameters) for _, lines, parameters in seen(text)], [(3, 2), (2, 0)])


if __name__ == "__main__":
    unittest.main()
