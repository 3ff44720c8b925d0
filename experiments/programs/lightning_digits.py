"""Classify scikit-learn's digits with Lightning, which starts its processes itself."""

import argparse

import lightning.pytorch as pl
import torch
from escala_steps import lightning as escala_lightning
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(pl.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 10),
        )  # fmt: skip

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        right = (self.net(x).argmax(1) == y).float().mean()
        self.log("val_accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.lr)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128, help="rows of a step of a device")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pl.seed_everything(args.seed)

    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    train = DataLoader(TensorDataset(x[:1536], y[:1536]), args.batch_size, shuffle=True)
    test = DataLoader(TensorDataset(x[1536:], y[1536:]), args.batch_size)

    trainer = pl.Trainer(
        max_epochs=args.epochs,
        devices=args.devices,
        num_nodes=args.nodes,
        strategy="ddp" if args.devices * args.nodes > 1 else "auto",
        callbacks=[escala_lightning()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Digits(args.width, 1e-3), train, test)


if __name__ == "__main__":
    main()
