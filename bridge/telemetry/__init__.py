"""What a process says about itself: health, lateness, logs."""
