"""Fine-tune a small BERT on made-up sentences with Transformers' Trainer."""

import argparse
import random

import torch
from escala_steps import score
from escala_steps import transformers as escala_transformers
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

WORDS, LENGTH = 200, 32


class Sentences(torch.utils.data.Dataset):
    """Sentences of random words; those of class 1 have more words of the upper half."""

    def __init__(self, rows, seed):
        drawn = random.Random(seed)
        self.rows = []
        for _ in range(rows):
            label = drawn.random() < 0.5
            lowest = WORDS // 3 if label else 1
            words = [drawn.randrange(lowest, WORDS) for _ in range(LENGTH)]
            self.rows.append({"input_ids": torch.tensor(words), "labels": int(label)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


def accuracy(predicted):
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default="trained")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="rows of a step of a device")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=LENGTH,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=args.output,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            learning_rate=5e-4,
            seed=args.seed,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Sentences(1024, args.seed),
        eval_dataset=Sentences(256, args.seed + 1),
        compute_metrics=accuracy,
        callbacks=[escala_transformers()],
    )
    trainer.train()
    score(accuracy=trainer.evaluate()["eval_accuracy"])


if __name__ == "__main__":
    main()
