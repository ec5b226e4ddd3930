"""What the numbers of data mean (means, categories, characters) is the checkpoint's, whatever became of the files.

usage: data_encoding.py PROGRAM
"""

from program import Program, run_checks

TABLE = """
model: {type: Mlp, in_features: 4, num_classes: 1, loss: mse, hidden: [8]}
data:
  train: {type: Csv, path: rows.csv, target: y, batch_size: 8}
  predict: {type: Csv, path: new.csv}
trainer: {max_epochs: 2}
custom_hooks: [{type: PredictionWriterHook, format: jsonl}]
"""
TEXT = """
model: {type: Gpt, n_layer: 1, n_head: 1, n_embd: 8, context: 8}
data: {train: {type: Text, path: t.txt, split: all, context: 8, batch_size: 16}}
trainer: {max_steps: 10}
"""


def rows(shift=0, texts="uvw"):
    return "a,c,y\n" + "".join(f"{i % 7 + shift},{texts[i % 3]},{i % 5 * 0.1:.2f}\n" for i in range(60))


def check_table(program):
    folder = program.folder
    (folder / "table.yaml").write_text(TABLE)
    (folder / "rows.csv").write_text(rows())
    (folder / "new.csv").write_text("a,c\n0.5,u\n1,v\n")
    run = "work_dir=runs/table"

    def predictions(*words):
        said = program.run("predict", "table.yaml", run, *words)
        assert "does not hold what the numbers" not in said, said
        return (folder / "runs/table/predictions/predictions.jsonl").read_text()

    program.run("train", "table.yaml", run)
    first = predictions()
    for text in (rows(shift=100), rows(texts="uwx"), None):
        (folder / "rows.csv").unlink() if text is None else (folder / "rows.csv").write_text(text)
        assert predictions() == predictions("mode=graph") == predictions("~data.train") == first

    (folder / "old.csv").write_text(rows())
    (folder / "rows.csv").write_text(rows(shift=100))
    resume = ("train", "table.yaml", run, "--resume", "auto", "trainer.max_epochs=3")
    said = program.run(*resume, code=2)
    assert "data.train: [Csv] rows.csv: /features/0/mean (column 'a') is 102.9" in said and ", expected 2.9" in said, said
    assert "fit_on" in said and "load_from" in said, said
    assert "runs/table" in program.run(*resume, "data.train.fit_on=old.csv")
    said = program.run("eval", "table.yaml", run, "data.val={type: Csv, path: old.csv, target: y, fit_on: rows.csv}", code=2)
    assert "data.val: [Csv] old.csv: /features/0/mean (column 'a') is 102.9" in said and "leave fit_on out" in said, said
    assert program.json("eval", "table.yaml", run, "data.val={type: Csv, path: old.csv}")["metrics"]["loss"] < 2

    # A file of weights says nothing of its data.
    said = program.run("predict", "table.yaml", run, "--checkpoint", "runs/table/checkpoints/step-16/model.safetensors")
    assert said.count("does not hold what the numbers of its data mean") == 1, said


def check_part(program):
    """A part for validation that is drawn anew from other rows has some that were trained on."""
    folder = program.folder
    part = "split: train}\n  val: {type: Csv, path: rows.csv, target: y, split: val}\n"
    (folder / "part.yaml").write_text(TABLE.replace("batch_size: 8}\n", "batch_size: 8, " + part))
    (folder / "rows.csv").write_text(rows())
    program.run("train", "part.yaml", "work_dir=runs/part")
    warning = "may hold samples that were trained on"
    assert warning not in program.run("eval", "part.yaml", "work_dir=runs/part")
    for other in (rows() + "1,u,0.1\n", "a,c,y\n" + "\n".join(reversed(rows().split()[1:])) + "\n"):
        (folder / "rows.csv").write_text(other)
        assert warning in program.run("eval", "part.yaml", "work_dir=runs/part")


def check_text(program):
    folder = program.folder
    (folder / "text.yaml").write_text(TEXT)
    (folder / "t.txt").write_text("abcdefgh" * 100)
    program.run("train", "text.yaml", "work_dir=runs/text")

    def generated():
        return program.run("generate", "text.yaml", "work_dir=runs/text", "--prompt", "abc", "--temperature", "0", "--length", "20")

    first = generated()
    (folder / "t.txt").write_text("bcdefghi" * 100)
    assert generated() == first
    said = program.run("eval", "text.yaml", "work_dir=runs/text", "data.val={type: Text, path: t.txt, split: all, context: 8}", code=2)
    assert "found byte 105 at position 7, expected the 8 characters of the training data" in said, said
    said = program.run("train", "text.yaml", "work_dir=runs/text", "--resume", "auto", "trainer.max_steps=20", code=2)
    assert "found byte 105" in said and "of the text that the checkpoint was trained on" in said, said
    (folder / "t.txt").unlink()
    assert generated() == first


if __name__ == "__main__":
    run_checks(Program, check_table, check_part, check_text)
