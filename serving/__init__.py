"""From a spec to a model that answers: plan, config, registry, gateway, local stack."""
