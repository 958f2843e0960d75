"""A small causal transformer that reads left-padded batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Policy(nn.Module):
    """A pre-norm transformer decoder.

    Parameters
    ----------
    vocab_size : int
        Number of token ids.
    max_positions : int
        Length of the longest sequence, padding left out.
    width, heads, layers : int
        Size of the network.
    """

    def __init__(
        self,
        vocab_size: int,
        max_positions: int,
        width: int = 128,
        heads: int = 4,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(max_positions, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, response_width: int) -> Tensor:
        """Return the log-probabilities of the response tokens.

        Parameters
        ----------
        input_ids, attention_mask : Tensor of int64, shape (B, W)
            A left-padded batch; the mask is 1 on tokens and 0 on padding.
        response_width : int
            R, the width of response-aligned fields.

        Returns
        -------
        Tensor of float32, shape (B, R)
            Right-aligned, like every response-aligned field: its last column belongs to the last
            token. Where the response mask is 0, the values mean nothing.
        """
        # Padding has no position of its own: a token's position does not depend on its batch.
        positions = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        hidden = self.tokens(input_ids) + self.positions(positions)

        width = input_ids.shape[1]
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        itself = torch.eye(width, dtype=torch.bool)  # or padding would attend to nothing: NaN
        visible = (causal & attention_mask[:, None, None, :].bool()) | itself
        for block in self.blocks:
            hidden = block(hidden, visible)

        # The hidden state before a token predicts it, hence the shift by one.
        logits = self.head(self.norm(hidden[:, -response_width - 1 : -1]))
        targets = input_ids[:, -response_width:, None]
        log_probs: Tensor = logits.log_softmax(dim=-1).gather(-1, targets).squeeze(-1)
        return log_probs


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

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        qkv = self.qkv(self.attention_norm(hidden))
        query, key, value = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        hidden = hidden + self.attention_out(attended.transpose(1, 2).flatten(-2))
        transformed: Tensor = hidden + self.mlp(hidden)
        return transformed
