"""What is sent: inputs and prompts, a pure function of seed and place in the schedule."""
