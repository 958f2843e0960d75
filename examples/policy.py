"""A small causal transformer for rows of one sequence and for rows of many."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import fastcollate as fc

KeyValue = tuple[Tensor, Tensor]


def response_log_probs(policy: nn.Module, batch: fc.Batch) -> Tensor:
    """Return log-probabilities of response tokens, aligned with the batch's loss mask.

    Parameters
    ----------
    policy
        A :class:`Policy`.
    batch
        Left-padded, packed with ``shift="next_token"`` and ``position_ids="zero"`` (or positions of
        padding could exceed the policy's), or a tree. In a tree, values of tokens that do not train
        are undefined.
    """
    ids, positions = batch.input_ids, batch.position_ids
    if "predictors" in batch:  # a tree: the output layer runs only on positions of the loss
        read, index = batch.loss_positions()
        log_probs: Tensor = policy(ids, positions, batch.dense_mask("bool"), read)
        return log_probs[index, batch.targets]
    places = torch.arange(ids.numel(), device=ids.device).view_as(ids)
    if "sequence_ids" in batch:
        # Kernels for variable lengths take batch.cu_seqlens instead of this mask.
        sequences, width, after = batch.sequence_ids, ids.shape[1] - 1, 1
    else:
        # One sequence (0) per row, after padding (-1).
        sequences, width, after = batch.attention_mask - 1, batch.response_mask.shape[1], 0
    read = places[:, -width - 1 : -1]
    log_probs = policy(ids, positions, within_sequences(sequences), read.flatten())
    of_next = log_probs.gather(-1, ids[:, -width:].reshape(-1, 1)).view_as(read)
    return functional.pad(of_next, (0, after))


def within_sequences(sequence_ids: Tensor) -> Tensor:
    """Return a causal mask within sequences.

    Parameters
    ----------
    sequence_ids : Tensor of int64, shape (N, W)
        Tokens with the same row and id are a sequence; padding is a separate one.

    Returns
    -------
    Tensor of bool, shape (N, 1, W, W)
    """
    same = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]
    return same & torch.ones(same.shape[-2:], dtype=torch.bool, device=same.device).tril()


class Policy(nn.Module):
    """A pre-norm transformer decoder.

    Parameters
    ----------
    vocab_size : int
        Number of token ids.
    max_positions : int
        Length of the longest sequence.
    width, heads, layers : int
        Size of the network.
    """

    def __init__(
        self, vocab_size: int, max_positions: int, width: int = 64, heads: int = 4, layers: int = 1
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(max_positions, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.5)
        nn.init.normal_(self.head.weight, std=0.02)  # nearly uniform initial probabilities

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, visible: Tensor, read: Tensor
    ) -> Tensor:
        """Return the log-probabilities of next tokens.

        Parameters
        ----------
        input_ids, position_ids : Tensor of int64, shape (N, W)
            Tokens, and their positions in their sequences.
        visible : Tensor of bool, shape (N, 1, W, W)
            The keys of each query.
        read : Tensor of int64, shape (P,)
            Flat positions in (N x W) whose values are returned.

        Returns
        -------
        Tensor, shape (P, vocabulary)
        """
        hidden = self.tokens(input_ids) + self.positions(position_ids)
        for block in self.blocks:
            hidden, _ = block(hidden, visible=visible)
        log_probs: Tensor = self.head(self.norm(hidden.flatten(0, 1)[read])).log_softmax(dim=-1)
        return log_probs

    def read(self, tokens: Tensor, past: list[KeyValue]) -> tuple[Tensor, list[KeyValue]]:
        """Read one more token of each sequence.

        Parameters
        ----------
        tokens : Tensor of int64, shape (B,)
            The next token of sequences that are all equally long so far.
        past : list of pairs of Tensor
            The previous call's `past`; empty at first.

        Returns
        -------
        log_probs : Tensor, shape (B, vocabulary)
            Log-probabilities of the following token.
        past : list of pairs of Tensor
            State of all tokens so far.
        """
        position = past[0][0].shape[2] if past else 0
        hidden = (self.tokens(tokens) + self.positions.weight[position])[:, None]
        now = []
        for index, block in enumerate(self.blocks):
            hidden, key_value = block(hidden, past=past[index] if past else None)
            now.append(key_value)
        log_probs: Tensor = self.head(self.norm(hidden[:, 0])).log_softmax(dim=-1)
        return log_probs, now


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(
        self, hidden: Tensor, visible: Tensor | None = None, past: KeyValue | None = None
    ) -> tuple[Tensor, KeyValue]:
        qkv = self.qkv(self.attention_norm(hidden))
        query, key, value = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        hidden = hidden + self.attention_out(attended.transpose(1, 2).flatten(-2))
        return hidden + self.mlp(hidden), (key, value)
