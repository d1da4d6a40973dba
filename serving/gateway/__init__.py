"""The gateway: routes as one model, and Envoy's configuration made of them."""
