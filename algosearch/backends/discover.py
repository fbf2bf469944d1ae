"""Which backends there are: those that a searcher gets when it is told none, and those that can be made by recipe."""

from __future__ import annotations

from algosearch.backends.base import Backend, Recipe
from algosearch.errors import InvalidSetting


def default_backends() -> tuple[Backend, ...]:
    """cuDNN, which has no devices where its library, CuPy or a GPU is missing; the CPU backend, which is always there,
    last. A device is opened, and CuPy imported, when it is first needed."""
    # Both import numpy: 70 ms that `import algosearch` must not cost.
    from algosearch.backends.cpu import CpuBackend
    from algosearch.backends.cudnn import CudnnBackend

    return (CudnnBackend(), CpuBackend())


def backend_of(recipe: Recipe) -> Backend:
    """The backend of a recipe. Imports that backend and nothing else.

    Raises:
        InvalidSetting: there is no such backend, or these are not its settings.
    """
    match recipe.backend:
        case "cpu":
            from algosearch.backends.cpu import CpuBackend

            return CpuBackend.from_recipe(recipe)
        case "cudnn":
            from algosearch.backends.cudnn import CudnnBackend

            return CudnnBackend.from_recipe(recipe)
        case "simulated":
            from algosearch.backends.simulated import SimulatedBackend

            return SimulatedBackend.from_recipe(recipe)
    raise InvalidSetting("backend", recipe.backend, "must be one of cpu, cudnn, simulated")
