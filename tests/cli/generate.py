"""Checks `duet generate`: a trained Gpt goes on with a text, the same one in both modes.

usage: generate.py PROGRAM
"""

from program import Program, run_checks

CONFIG = """
model: {type: Gpt, n_layer: 1, n_head: 2, n_embd: 32, context: 16, dropout: 0.1}
data:
  train: {type: Text, path: text.txt, split: all, context: 16, stride: 4, batch_size: 16, shuffle: true}
trainer: {max_steps: 250}
optim_wrapper: {optimizer: {type: AdamW, lr: 0.01}}
"""


class GenerateProgram(Program):
    def __init__(self, path, folder):
        super().__init__(path, folder)
        self.write("text.txt", "abcdefgh " * 200)
        self.write("t.yaml", CONFIG)

    def text(self, *arguments):
        return self.json("generate", "t.yaml", *arguments)["text"]


def check_texts(program):
    program.run("generate", "t.yaml", code=4)
    program.run("train", "t.yaml", "mode=graph")
    # Longer than the context, from one character on: what it has learned by heart.
    greedy = [program.text("--prompt", "a", "--length", "40", "--temperature", "0", f"--mode={mode}") for mode in ("eager", "graph")]
    assert greedy[0] == greedy[1] == ("abcdefgh " * 5)[:41], greedy
    drawn = [program.text("--prompt", "abc", "--temperature", "3", "--length", "60", "--seed", seed, f"--mode={mode}")
             for seed, mode in (("1", "eager"), ("1", "graph"), ("2", "graph"))]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]) == 63, drawn
    likely = program.text("--prompt", "abc", "--temperature", "3", "--top-k", "1", "--length", "30")
    assert likely == ("abcdefgh " * 4)[:33], likely
    program.refuses([("byte 90", 3, "--prompt", "Z"), ("--prompt is empty", 2, "--prompt", ""),
                     ("Text", 2, "data.train={type: FashionMnist}", "model.vocab_size=9")], "generate", "t.yaml")


if __name__ == "__main__":
    run_checks(GenerateProgram, check_texts)
