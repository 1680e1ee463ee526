"""How far losses on a GPU drift from those on the CPU, and what that is to be held against.

In fp32 only the order of sums differs, so a fixed tolerance says what is right. In bf16 and fp8 a difference of one rounding grows
with the steps, and how fast depends on the model. There the drift stands beside two others, both of the CPU: from the same plan in
fp32 (what rounding does) and from the same plan with another seed (what chance does). A right GPU is near the former; one that is as
far off as another seed has learned something else.
"""

import math
import typing

# Relative, of each loss.
FP32_TOLERANCE = 1e-4


def drift(losses, expected):
    """The largest relative difference of a step's loss; infinite if one is not a number."""
    pairs = list(zip(losses, expected, strict=True))
    if not pairs or not all(math.isfinite(loss) for pair in pairs for loss in pair):
        return math.inf
    return max(abs(loss / other - 1) for loss, other in pairs)


class Scale(typing.NamedTuple):
    """The drifts on the CPU, beside which that of a GPU stands."""
    rounding: float
    seed: float

    @staticmethod
    def of(losses, in_fp32, of_another_seed):
        """From the losses of three runs on the CPU."""
        return Scale(drift(losses, in_fp32), drift(losses, of_another_seed))

    def __str__(self):
        return f"{self.rounding:.1e} from fp32 and {self.seed:.1e} from another seed, both on the CPU"


def result(precision, found, scale):
    """`right` or `WRONG` in fp32, else `reported`, or `WRONG` if the GPU is as far off as another seed."""
    if precision == "fp32":
        return "right" if found <= FP32_TOLERANCE else "WRONG"
    return "reported" if found < scale.seed else "WRONG"
