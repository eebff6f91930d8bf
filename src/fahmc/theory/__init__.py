"""What to expect: the rates of FA-HMC, and its exact law on Gaussian clients."""

from fahmc.theory.bounds import (
    ErrorParts,
    StepSizeBound,
    VanillaSetting,
    contraction_factor,
    error_parts,
    iterations_lower_bound,
    iterations_to_accuracy,
    iterations_to_contract,
    rounds_to_accuracy,
    squared_distance_bound,
    step_size_bound,
    vanilla_setting,
)
from fahmc.theory.gaussian import law_after, laws_by_round, round_law, stationary_law
from fahmc.theory.gaussian_setting import GaussianClients, GaussianLaw, RoundLaw, w2_to_posterior
from fahmc.theory.regime import Regime
from fahmc.theory.stages import stage_schedule, staged_iterations_bound, staged_iterations_to_accuracy

__all__ = ["ErrorParts", "Regime", "StepSizeBound", "VanillaSetting", "contraction_factor", "error_parts"]
__all__ += ["iterations_lower_bound", "iterations_to_accuracy", "iterations_to_contract", "rounds_to_accuracy"]
__all__ += ["squared_distance_bound", "step_size_bound", "vanilla_setting"]
__all__ += ["stage_schedule", "staged_iterations_bound", "staged_iterations_to_accuracy"]
__all__ += ["GaussianClients", "GaussianLaw", "RoundLaw", "law_after", "laws_by_round", "round_law", "stationary_law"]
__all__ += ["w2_to_posterior"]
