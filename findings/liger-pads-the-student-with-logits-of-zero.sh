#!/usr/bin/env bash
# liger-kernel 0.8.5: distillation from a head with padding rows gives absent tokens a logit of zero, not none.
#
# Models of one family can differ in the rows of their heads, because some are padded: Qwen2.5 has 151,936 or 152,064.
# Liger's fused losses for distillation accept a teacher with more rows than the student. They append logits of 0 to
# those of the student. A logit of 0 is not a probability of 0. Softmax ignores a shift of all logits, and the appended
# ones do not shift. So the loss depends on the level of the student's logits, which means nothing else. Here the
# teacher is the student with 56 rows that never win, so each loss should be 0. It is right while the logits are far
# above 0. At a level of -5 the absent tokens take most of the student's probability. At -20 the Jensen-Shannon loss is
# at its maximum, log 2, and its gradient is almost 0, so nothing is learned. A comment in the code says that the
# logits are padded. The docstrings do not mention it. Nothing is raised or warned. A teacher with fewer rows than the
# student raises an error. Pull request 634 of Liger-Kernel added the padding for Qwen. No public issue about it was
# found; pull request 6629 of trl is about scales and soft caps that this loss does not know. Seen with liger-kernel
# 0.8.5 and torch 2.13.0:
#   level 20, Kullback-Leibler: loss with 200 rows 0.00, with 256 rows 0.00, gradient 0.0000
#   level 0, Kullback-Leibler: loss with 200 rows 0.00, with 256 rows 0.05, gradient 0.0101
#   level -5, Kullback-Leibler: loss with 200 rows 0.00, with 256 rows 1.93, gradient 0.2188
#   level -5, Jensen-Shannon: loss with 200 rows 0.00, with 256 rows 0.46, gradient 0.0398
#   level -20, Kullback-Leibler: loss with 200 rows 0.00, with 256 rows 16.71, gradient 0.3124
#   level -20, Jensen-Shannon: loss with 200 rows 0.00, with 256 rows 0.69, gradient 0.0000
# So cut the teacher's head to the rows of the student before this loss.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 liger-kernel==0.8.5 2>/dev/null
HF_HUB_OFFLINE=1 "$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import math
import sys

import torch
from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

TOKENS, PADDED, WIDTH, ROWS = 200, 256, 16, 32
torch.manual_seed(0)
states, labels = torch.randn(ROWS, WIDTH), torch.randint(TOKENS, (ROWS,))
head = torch.randn(TOKENS, WIDTH) / 2
padded = torch.cat([head, torch.zeros(PADDED - TOKENS, WIDTH)])


def distil(teacher, level, beta):
    """The loss of a student against itself, and the size of the gradient of its head; `level` is added to all logits."""
    student, bias = head.clone().requires_grad_(), torch.full((TOKENS,), level)
    never = torch.full((len(teacher) - TOKENS,), -1e4)
    loss = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=beta, compiled=False)
    value = loss(states, student, states, teacher, labels, bias, torch.cat([bias, never]))
    value.backward()
    return abs(value.item()), student.grad.norm().item()


seen = {}
for level in (20.0, 0.0, -5.0, -20.0):
    for kind, beta in (("Kullback-Leibler", 0.0), ("Jensen-Shannon", 0.5)):
        same, (more, gradient) = distil(head, level, beta)[0], distil(padded, level, beta)
        seen[level, kind] = same, more, gradient
        print(f"level {level:.0f}, {kind}: loss with 200 rows {same:.2f}, with 256 rows {more:.2f}, gradient {gradient:.4f}")
kl, js = (seen[-20.0, kind] for kind in ("Kullback-Leibler", "Jensen-Shannon"))
right = all(same < 1e-4 for same, _, _ in seen.values()) and seen[20.0, "Kullback-Leibler"][1] < 1e-3
wrong = kl[1] > 10 and abs(js[1] - math.log(2)) < 0.01 and js[2] < 1e-4
sys.exit(not (right and wrong))
PY
