"""A Hugging Face model, unmodified, trained by duet: first with a trainer, then as the step of a loop.

Needs transformers. The model is small and untrained and learns whether a word occurs in a row, so nothing is downloaded.
"""

import torch
import transformers

import duet


def make_model():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, num_labels=2
    )
    return transformers.BertForSequenceClassification(config)


def make_batches(count, seed):
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        words = torch.randint(3, 100, (32, 16), generator=generator)
        labels = torch.randint(2, (32,), generator=generator)
        words[:, 5] = torch.where(labels == 1, 7, words[:, 5])
        mask = torch.ones_like(words)
        batches.append(transformers.BatchEncoding({"input_ids": words, "attention_mask": mask, "labels": labels}))
    return batches


def with_a_trainer():
    trainer = duet.GraphTrainer(
        duet.hugging_face(make_model()),
        optimizer=duet.AdamW(lr=1e-3),
        schedules=[duet.Linear(end=20), duet.Cosine(begin=20)],
        metrics=[duet.Accuracy(target="labels")],
        max_epochs=4,
    )
    trainer.fit(make_batches(50, seed=1), make_batches(10, seed=2))
    print(trainer.validate(make_batches(10, seed=2)))
    print(trainer.report())


def in_a_loop():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = duet.graph_step(model, lambda model, batch: model(**batch).loss, optimizer, clip_grad_norm=1.0)
    for batch in make_batches(50, seed=1):
        loss = step(batch)
    print(f"loss {loss:.4f}")


if __name__ == "__main__":
    with_a_trainer()
    in_a_loop()
