"""The engines that run models: their settings in a spec, and the config each one reads."""
