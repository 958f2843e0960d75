"""A small causal transformer for rows of one sequence and for rows of many."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import fastcollate as fc

KeyValue = tuple[Tensor, Tensor]


def response_log_probs(policy: nn.Module, batch: fc.Batch) -> Tensor:
    """Return log-probabilities of response tokens, where a batch's loss mask has them.

    Parameters
    ----------
    policy
        A :class:`Policy`.
    batch
        Left-padded, or packed with ``shift="next_token"``; with ``position_ids="zero"``.
    """
    if "sequence_ids" in batch:
        packed: Tensor = policy(batch.input_ids, batch.position_ids, batch.sequence_ids)
        return packed
    # To each row one sequence, 0, with padding, -1, in front. A position is about the next token.
    width = batch.response_mask.shape[1]
    sequence_ids = batch.attention_mask - 1
    padded: Tensor = policy(batch.input_ids, batch.position_ids, sequence_ids, last=width + 1)
    return padded[:, :-1]


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
        nn.init.normal_(self.head.weight, std=0.02)  # at first, all tokens are about as likely

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, sequence_ids: Tensor, last: int | None = None
    ) -> Tensor:
        """Return the log-probability of each next token.

        Parameters
        ----------
        input_ids, position_ids, sequence_ids : Tensor of int64, shape (N, W)
            A token attends to those of its own sequence up to itself: those of its row with the
            same sequence id. Padding is a sequence of its own.
        last : int, optional
            How many of the last positions are asked for; all of them by default.

        Returns
        -------
        Tensor, shape (N, W) or (N, last)
            Position p has the log-probability of token p + 1, and the last one 0. Where the next
            token is of another sequence, the value means nothing.
        """
        # Kernels for variable lengths take batch.cu_seqlens instead of this mask.
        same = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]
        visible = same & torch.ones(same.shape[-2:], dtype=torch.bool, device=same.device).tril()
        hidden = self.tokens(input_ids) + self.positions(position_ids)
        for block in self.blocks:
            hidden, _ = block(hidden, visible=visible)
        if last is not None:
            hidden, input_ids = hidden[:, -last:], input_ids[:, -last:]
        log_probs = self.head(self.norm(hidden[:, :-1])).log_softmax(dim=-1)
        of_next = log_probs.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
        return functional.pad(of_next, (0, 1))

    def read(self, tokens: Tensor, past: list[KeyValue]) -> tuple[Tensor, list[KeyValue]]:
        """Read one more token of each sequence.

        Parameters
        ----------
        tokens : Tensor of int64, shape (B,)
            The next token of sequences that are all equally long so far.
        past : list of pairs of Tensor
            What the call before returned; empty at first.

        Returns
        -------
        log_probs : Tensor, shape (B, vocabulary)
            Those of the token after it.
        past : list of pairs of Tensor
            What was read so far.
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
