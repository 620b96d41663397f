"""Make plans from evidence. These are pure functions: they read and write nothing."""

from tieconv.plans.biases import BiasChoice
from tieconv.plans.verbs.retie import Survivor, forecast_retie, plan_retie
from tieconv.plans.verbs.untie import plan_untie

__all__ = ["BiasChoice", "Survivor", "forecast_retie", "plan_retie", "plan_untie"]
