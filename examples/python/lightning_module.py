"""A LightningModule, unmodified, trained by duet. Needs lightning."""

import lightning
import torch
from torch import nn

import duet


class Circle(lightning.LightningModule):
    """Does a point lie inside the circle?"""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def training_step(self, batch, batch_idx):
        point, inside = batch
        loss = nn.functional.cross_entropy(self.net(point), inside)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        point, inside = batch
        prediction = self.net(point)
        return {"loss": nn.functional.cross_entropy(prediction, inside), "prediction": prediction}

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def make_loader(count):
    point = torch.rand(count, 2) * 2 - 1
    inside = (point.norm(dim=1) < 0.7).long()
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(point, inside), batch_size=64, shuffle=True)


def main():
    torch.manual_seed(0)
    trainer = duet.GraphTrainer(
        duet.lightning(Circle()), metrics=[duet.Accuracy(target="1")], max_epochs=5
    )
    trainer.fit(make_loader(4096), make_loader(1024))
    print(trainer.validate(make_loader(1024)))
    print(trainer.report())


if __name__ == "__main__":
    main()
