"""Peer (a): FA-HMC as research code has it, a PyTorch loop over leapfrog steps.

State is [chain, client, dim], gradients are written by hand as batched products over chains and clients, and each
leapfrog step evaluates two, also where exact gradients would let it keep one for the next step.
"""

from __future__ import annotations

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from fahmc.bench.cases import Case
from fahmc.bench.oracle import Probe

Tensor = torch.Tensor


class TorchLoop:
    """Federated logistic regression. One unit of work is one leapfrog step."""

    is_pooled = False

    def __init__(self, case: Case):
        sampler, problem = case.sampler, case.problem
        x, y = problem.stacked()
        self._x, self._y = torch.from_numpy(x), torch.from_numpy(y)
        self._scale = float(len(x))  # n / n_c of equal clients
        self._step_size, self._noise = case.step_size, case.noise_scale
        self._refresh_every = sampler.num_leapfrog_steps
        in_leapfrog_units = sampler.sync_unit == "leapfrog"
        self._average_every = sampler.num_local_steps * (1 if in_leapfrog_units else sampler.num_leapfrog_steps)
        self._shape = (case.num_chains, len(x), problem.dimension)
        self._step, self._position, self._momentum = 0, torch.zeros(self._shape), torch.zeros(self._shape)
        self.work_per_unit = case.num_chains

    @torch.no_grad()
    def run(self, num_units: int) -> None:
        """Take some leapfrog steps, drawing momenta and averaging when it is time."""
        position, momentum = self._position, self._momentum
        for step in range(self._step, self._step + num_units):
            if step % self._refresh_every == 0:
                num_chains, _, dim = self._shape
                momentum = torch.randn(num_chains, 1, dim).expand(self._shape).contiguous()
            position, momentum = self._leapfrog(position, momentum, self._step_size, self._noise)
            if (step + 1) % self._average_every == 0:
                position, momentum = self._averaged(position), self._averaged(momentum)
        self._step, self._position, self._momentum = self._step + num_units, position, momentum

    @torch.no_grad()
    def answer(self, probe: Probe) -> np.ndarray:
        """Take the probe's leapfrog steps and average."""
        position, momentum = (
            torch.from_numpy(at).float()[:, None].expand(self._shape) for at in (probe.position, probe.momentum)
        )
        for _ in range(probe.num_steps):
            noise = self._noise if probe.is_noisy else 0.0
            position, momentum = self._leapfrog(position, momentum, probe.step_size, noise)
        return position.mean(dim=1).numpy()

    def _leapfrog(self, position: Tensor, momentum: Tensor, eta: float, noise: float) -> tuple[Tensor, Tensor]:
        gradient = self._gradient(position, noise)
        position = position + eta * momentum - eta**2 / 2 * gradient
        momentum = momentum - eta / 2 * (gradient + self._gradient(position, noise))
        return position, momentum

    def _gradient(self, position: Tensor, noise: float) -> Tensor:
        logits = torch.einsum("kcd,crd->kcr", position, self._x)
        gradient = self._scale * torch.einsum("kcr,crd->kcd", torch.sigmoid(logits) - self._y, self._x) + position
        return gradient + noise * torch.randn(self._shape) if noise else gradient

    def _averaged(self, values: Tensor) -> Tensor:
        # Contiguous, and noise of a plain shape: PyTorch is several times slower on other layouts.
        return values.mean(dim=1, keepdim=True).expand(self._shape).contiguous()
