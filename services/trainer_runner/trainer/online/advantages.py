"""How much better a completion is than those it is compared with."""

# G = groups of K completions to one prompt, N = G K completions

from __future__ import annotations

from typing import Literal

import torch

_EPSILON = 1e-4
"""Keeps a group whose rewards are all alike from being divided by zero; trl's."""


def relative_to_group(
    rewards: torch.Tensor, *, size: int, scale: Literal["group", "batch", "none"]
) -> torch.Tensor:
    """Return rewards less their group's mean, divided by a standard deviation.

    Shao et al. 2024, section 4.1.2; ``none`` divides by nothing (Liu et al. 2025, equation 3).

    Args:
        rewards: shape (N,), groups one after the other.
        size: K.
        scale: whose standard deviation it is.

    Returns:
        Shape (N,).
    """
    grouped_GK = rewards.view(-1, size)
    advantages_GK = grouped_GK - grouped_GK.mean(dim=1, keepdim=True)
    if scale == "group":
        advantages_GK = advantages_GK / (grouped_GK.std(dim=1, keepdim=True) + _EPSILON)
    elif scale == "batch":
        advantages_GK = advantages_GK / (rewards.std() + _EPSILON)
    return advantages_GK.view(-1)


def leave_one_out(rewards: torch.Tensor, *, size: int, normalize: bool) -> torch.Tensor:
    """Return rewards less the mean of the others in their group.

    Ahmadian et al. 2024, equation 8; arguments and result as above.
    """
    grouped_GK = rewards.view(-1, size)
    others_GK = (grouped_GK.sum(dim=1, keepdim=True) - grouped_GK) / (size - 1)
    advantages = (grouped_GK - others_GK).view(-1)
    if normalize:
        advantages = (advantages - advantages.mean()) / (advantages.std() + _EPSILON)
    return advantages


def share_without_spread(rewards: torch.Tensor, *, size: int) -> float:
    """Return the share of groups whose completions all earn the same, and teach nothing."""
    spread_G = rewards.view(-1, size).std(dim=1)
    share: float = torch.isclose(spread_G, torch.zeros_like(spread_G)).float().mean().item()
    return share
