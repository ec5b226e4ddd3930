"""Checks `duet generate`: a trained Gpt goes on with a text, the same one in both modes.

usage: generate.py PROGRAM
"""

import json
import pathlib
import sys
import tempfile

from program import Program

CONFIG = """
model: {type: Gpt, n_layer: 1, n_head: 2, n_embd: 32, context: 16, dropout: 0.1}
data:
  train: {type: Text, path: text.txt, split: all, context: 16, stride: 4, batch_size: 16, shuffle: true}
trainer: {max_steps: 250}
optim_wrapper: {optimizer: {type: AdamW, lr: 0.01}}
"""


class GenerateProgram(Program):
    def text(self, *arguments):
        self.run("generate", "t.yaml", *arguments, "--json", "result.json")
        return json.loads((self.folder / "result.json").read_text())["text"]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("abcdefgh " * 200)
        (folder / "t.yaml").write_text(CONFIG)
        program = GenerateProgram(sys.argv[1], folder)
        program.run("generate", "t.yaml", code=4)
        program.run("train", "t.yaml", "mode=graph")
        # Longer than the context, from one character on: what it has learned by heart.
        greedy = [program.text("--prompt", "a", "--length", "40", "--temperature", "0", f"--mode={mode}")
                  for mode in ("eager", "graph")]
        assert greedy[0] == greedy[1] == ("abcdefgh " * 5)[:41], greedy
        drawn = [program.text("--prompt", "abc", "--temperature", "3", "--length", "60", "--seed", seed, f"--mode={mode}")
                 for seed, mode in (("1", "eager"), ("1", "graph"), ("2", "graph"))]
        assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]) == 63, drawn
        likely = program.text("--prompt", "abc", "--temperature", "3", "--top-k", "1", "--length", "30")
        assert likely == ("abcdefgh " * 4)[:33], likely
        assert "byte 90" in program.run("generate", "t.yaml", "--prompt", "Z", code=3)
        assert "--prompt is empty" in program.run("generate", "t.yaml", "--prompt", "", code=2)
        assert "Text" in program.run("generate", "t.yaml", "data.train={type: FashionMnist}", "model.vocab_size=9", code=2)
    print("texts go on alike in both modes")


if __name__ == "__main__":
    main()
