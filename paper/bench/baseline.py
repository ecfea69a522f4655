"""What the accelerated attacks are measured against: the algorithms of the paper, batch-vectorised the obvious way.

Every sample stays in the batch to the end; the gradient of every logit is taken, and that of the assigned class once
more (C + 1 backward passes per member); the expected accuracy of each candidate and of each result is computed anew
(M^2 + 2M forward passes per iteration). Written from Algorithm 2 and Eq. (5), for the linf and l2 norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from recarc.ensemble import Member


def _rows(v: Tensor) -> Tensor:
    return v.view(-1, 1, 1, 1)


def _project(delta: Tensor, x: Tensor, p: float, eps: float) -> Tensor:
    if math.isinf(p):
        delta = delta.clamp(-eps, eps)
    else:
        delta = delta * _rows((eps / delta.flatten(1).norm(dim=1).clamp(min=1e-12)).clamp(max=1))
    return (x + delta).clamp(0, 1) - x


def _expected_accuracy(models: Sequence[Member], alpha: Tensor, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        right = torch.stack([model(x).argmax(1) == y for model in models])
    return (alpha[:, None] * right).sum(0).round(decimals=12)


def _nearest(model: Member, u: Tensor, q: float, planes: int | None) -> tuple[Tensor, Tensor]:
    """The gradient difference of the nearest plane, at dual norm 1, and the distance to it.

    Of all planes, or of those to the `planes` likeliest classes (Appendix D).
    """
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        logits = model(u)
        m = logits.argmax(1)
        own = torch.autograd.grad(logits.gather(1, m[:, None]).sum(), u, retain_graph=True)[0]
        if planes is not None:
            logits = logits.gather(1, logits.topk(planes + 1, dim=1).indices)
            m = torch.zeros_like(m)
        classes = logits.shape[1]
        each = [torch.autograd.grad(logits[:, j].sum(), u, retain_graph=j + 1 < classes)[0] for j in range(classes)]
    w = own[None] - torch.stack(each)  # (C, B, ...)
    length = w.flatten(2).norm(q, dim=2)
    h = (logits.detach().gather(1, m[:, None]) - logits.detach()).T
    distance = (h / length.clamp(min=1e-12)).scatter(0, m[None], math.inf)
    n = distance.argmin(0)
    rows = torch.arange(len(u), device=u.device)
    return w[n, rows] / _rows(length[n, rows].clamp(min=1e-12)), distance[n, rows]


def arc(
    models: Sequence[Member],
    alpha: Tensor,
    x: Tensor,
    y: Tensor,
    p: float,
    eps: float,
    steps: int,
    planes: int | None = None,
) -> Tensor:
    """Algorithm 2 on one batch, every plane unless told, eta = eps (linf) or eps / 4 (l2), rho = 0.05 eps."""
    q, eta, rho = (1.0, eps, 0.05 * eps) if math.isinf(p) else (2.0, eps / 4, 0.05 * eps)
    alpha = alpha.to(x.device)
    order = sorted(range(len(models)), key=lambda i: -float(alpha[i]))
    delta = torch.zeros_like(x)
    v = _expected_accuracy(models, alpha, x, y)
    for _ in range(steps):
        delta_l, v_l = torch.zeros_like(x), v
        for i in order:
            w, zeta = _nearest(models[i], (x + delta + delta_l).clamp(0, 1), q, planes)
            g = -(w.sign() if math.isinf(p) else w)
            far = (zeta >= eta) | (delta_l.flatten(1).abs().amax(1) == 0)
            along = (w * delta_l).flatten(1).sum(1)
            beta = torch.where(far, eta, eta / (eta - zeta) * (along + zeta).abs() + rho)
            pushed = delta_l + _rows(beta) * g
            delta_l_hat = pushed * _rows(eta / pushed.flatten(1).norm(p, dim=1).clamp(min=1e-12))
            delta_hat = _project(delta + delta_l_hat, x, p, eps)
            v_hat = _expected_accuracy(models, alpha, (x + delta_hat).clamp(0, 1), y)
            accept = v_hat <= v_l
            delta_l = torch.where(_rows(accept), delta_l_hat, delta_l)
            v_l = torch.where(accept, v_hat, v_l)
        delta_hat = _project(delta + delta_l, x, p, eps)
        v_hat = _expected_accuracy(models, alpha, (x + delta_hat).clamp(0, 1), y)
        accept = v_hat <= v
        delta = torch.where(_rows(accept), delta_hat, delta)
        v = torch.where(accept, v_hat, v)
    return (x + delta).clamp(0, 1)


def adaptive_pgd(
    models: Sequence[Member], alpha: Tensor, x: Tensor, y: Tensor, p: float, eps: float, steps: int
) -> Tensor:
    """PGD on the expected cross-entropy, from zero, with steps of eps / 4."""
    weights = alpha.tolist()
    delta = torch.zeros_like(x)
    for _ in range(steps):
        with torch.enable_grad():
            u = (x + delta).clamp(0, 1).detach().requires_grad_()
            loss = sum(a * F.cross_entropy(model(u), y, reduction="sum") for a, model in zip(weights, models))
            (g,) = torch.autograd.grad(loss, u)
        length = g.flatten(1).norm(dim=1).clamp(min=1e-12)
        direction = g.sign() if math.isinf(p) else g / _rows(length)
        delta = _project(delta + eps / 4 * direction, x, p, eps)
    return (x + delta).clamp(0, 1)
