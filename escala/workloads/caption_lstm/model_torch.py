"""The network that writes captions, in PyTorch, as in `model`. The outputs are logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional

from escala.data.base import Spec
from escala.data.captions.words import END, NEVER_WRITTEN, PADDING, START
from escala.engines.torch import layers, optimizers


class CaptionLSTM(nn.Module):
    """The network for features (rows, F) and words (rows, captions, length), padded at the end.

    It gives logits of the next word, float32 (rows, captions, length, V). At padding they are 0:
    only positions that hold a word reach the last two layers. Nothing before a caption's end
    depends on its padding, so no mask is needed.
    """

    def __init__(self, features: int, words: int, width: int, dropout: float):
        super().__init__()
        self.embedding = layers.embedding(words, width)
        self.lstm = layers.lstm(width, width)
        self.picture = layers.dense(features, width)
        self.merged = layers.dense(width, width)
        self.next_word = layers.dense(width, words)
        self.drop_features = nn.Dropout(dropout)
        self.drop_words = nn.Dropout(dropout)

    def forward(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        features, words = inputs
        numbers = features.to(torch.get_default_dtype())
        scenes = self.scenes(self.drop_features(numbers))
        captions = words.shape[1]
        numbers = words.long().flatten(0, 1)
        states, _ = self.lstm(self.drop_words(self.embedding(numbers)))
        is_word = numbers > PADDING
        caption, _ = is_word.nonzero(as_tuple=True)
        logits = self.logits(states[is_word] + scenes[caption // captions])
        everywhere = logits.new_zeros(*numbers.shape, logits.shape[-1])
        everywhere[is_word] = logits
        return everywhere.unflatten(0, (-1, captions))

    def scenes(self, features: torch.Tensor) -> torch.Tensor:
        """Return what the network keeps of features, (rows, width)."""
        return self.picture(features).relu()

    def logits(self, merged: torch.Tensor) -> torch.Tensor:
        """Return logits of the next word from the sum of states and scenes, (rows, V)."""
        return self.next_word(self.merged(merged).relu())


def build(
    specs: Sequence[Spec], outputs: tuple[int, int], settings: Mapping, knobs: Mapping
) -> nn.Module:
    """Build the network for features of a picture and the words of its captions.

    Parameters
    ----------
    specs : `features`, (F,), and `words`, (captions, length). The limit `below` of `words` is the
        number V of words.
    """
    features, words = specs
    return CaptionLSTM(*features.shape, words.below, settings["width"], settings["dropout"])


def optimizer(
    parameters: Iterable[nn.Parameter], settings: Mapping, learning_rate: float, knobs: Mapping
) -> torch.optim.Optimizer:
    """Return Adam or RMSprop."""
    return optimizers.optimizer(settings["optimizer"], parameters, learning_rate, settings)


def row_losses(targets: torch.Tensor, outputs: torch.Tensor, settings: Mapping) -> torch.Tensor:
    """Return the sum of the cross-entropies of a picture's next words, in nats, float32 (rows,).

    Parameters
    ----------
    targets : the next word at each position, (rows, captions, length); 0 where there is none.
    outputs : logits, (rows, captions, length, V).
    """
    losses = functional.cross_entropy(
        outputs.flatten(0, 2), targets.long().flatten(), reduction="none", ignore_index=PADDING
    )
    return losses.view(targets.shape).sum((1, 2))


def correct(targets: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return the fraction of a picture's next words that are the most probable, float32 (rows,)."""
    numbers = targets.long()
    is_word = numbers > PADDING
    hits = (is_word & (outputs.argmax(-1) == numbers)).sum((1, 2)).float()
    return hits / is_word.sum((1, 2)).clamp(min=1)


def generate(model: CaptionLSTM, inputs: Sequence[torch.Tensor], settings: Mapping) -> torch.Tensor:
    """Return a caption for each picture, uint16 (rows, length): its words, END, and padding.

    A beam search as in `model`: it keeps the `beam` captions of largest probability, and ends when
    all hold END or `length` words. Of the inputs, only the features are read.
    """
    features, words = inputs
    rows, length, beam = len(features), words.shape[-1], settings["beam"]
    scenes = model.scenes(features.to(torch.get_default_dtype())).repeat_interleave(beam, 0)
    sizes = model.next_word.out_features
    forbidden = scenes.new_zeros(sizes)
    forbidden[list(NEVER_WRITTEN)] = float("-inf")
    only_padding = scenes.new_full((sizes,), float("-inf"))
    only_padding[PADDING] = 0.0
    captions = torch.zeros((rows, beam, length), dtype=torch.long, device=scenes.device)
    last = torch.full((rows, beam), START, device=scenes.device)
    # At first all captions of a beam are the same: only one counts.
    scores = scenes.new_full((rows, beam), float("-inf"))
    scores[:, 0] = 0.0
    states = None
    for position in range(length):
        output, states = model.lstm(model.embedding(last.view(-1, 1)), states)
        logits = model.logits(output[:, 0] + scenes) + forbidden
        added = logits.log_softmax(-1).view(rows, beam, sizes)
        added = torch.where(_ended(last)[..., None], only_padding, added)
        scores, selected = (scores[..., None] + added).view(rows, -1).topk(beam)
        parents, last = selected // sizes, selected % sizes
        captions = captions.gather(1, parents[..., None].expand_as(captions))
        captions[:, :, position] = last
        # The states of the captions that were extended.
        kept = (parents + beam * torch.arange(rows, device=parents.device)[:, None]).view(-1)
        states = tuple(state[:, kept] for state in states)
        if _ended(last).all():
            break
    return captions[:, 0].to(torch.uint16)


def _ended(last: torch.Tensor) -> torch.Tensor:
    """Return whether captions are complete, by their last words."""
    return (last == END) | (last == PADDING)
