"""What goes to a worker: how to load the model, and the recipe of the job, pickled by Ray's cloudpickle.

Functions and classes of importable modules go by name (the module must be importable there), those of the main script
by value, with what they close over. What cannot go is told by its argument before anything is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from safegen.errors import RequestError
from safegen.guards.guards import Guards
from safegen.jobs.on_ray.cluster import import_ray
from safegen.jobs.recipe import Recipe
from safegen.output_type import OutputType
from safegen.runtime import Runtime

_FIX = {
    "prompt": "define the function at the top of a module and open what it needs inside it",
    "type_of": "define the function at the top of a module and open what it needs inside it",
    "type": "define the type at the top of a module",
    "guards": "give functions of modules, and objects without locks, connections and open files",
}


@dataclass(frozen=True, slots=True)
class Shipment:
    """fingerprint: of the driver's model, which the worker's must have too."""

    reload: Callable[[], Runtime]
    fingerprint: str
    recipe: Recipe


def pack(runtime: Runtime, recipe: Recipe) -> bytes:
    """The shipment, for `unpack`. Raises RequestError that names the argument that cannot go."""
    if runtime.reload is None:
        raise RequestError(
            "engine='ray' loads the model in every worker, and nobody knows how this one was loaded; make it by "
            "LLM(...) or LLM.without_weights(...)",
            field="engine",
        )
    if isinstance(recipe.spec, OutputType):
        raise RequestError(
            "a compiled type stays in its process; pass what it was compiled from", field="type", value=recipe.spec
        )
    for guards in (runtime.guards(None), recipe.call.guards):
        if isinstance(guards, Guards) and guards.audit is not None:
            raise RequestError(
                "guards with audit= write to a place of one process; leave it out with engine='ray': every record of "
                "the output holds its audit",
                field="guards",
            )
    parts = {
        "prompt": recipe.prompt,
        "type_of": recipe.type_of,
        "type": recipe.spec,
        "guards": recipe.call.guards,
        "speculation": recipe.call.speculation,
        "the LLM's own options": runtime.reload,
    }
    for field, value in parts.items():
        _dumped(field, value)
    return _dumped("job", Shipment(runtime.reload, runtime.fingerprint, recipe))


def unpack(package: bytes) -> Shipment:
    """In a worker: what the driver has packed."""
    shipment: Shipment = import_ray().cloudpickle.loads(package)
    return shipment


def _dumped(field: str, value: Any) -> bytes:
    try:
        dumped: bytes = import_ray().cloudpickle.dumps(value)
    except Exception as error:  # whatever the caller's objects raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        fix = _FIX.get(field, "pass plain data")
        raise RequestError(
            f"{field} cannot go to the workers of Ray: {reason:.200}. Fix: {fix}", field=field, value=value
        ) from error
    return dumped
