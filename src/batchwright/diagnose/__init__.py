"""Why was it slow, what failed: rules over what a run left."""
