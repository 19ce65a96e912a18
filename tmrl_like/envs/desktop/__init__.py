"""What a desktop game is played with: its window, the screen, keys, a gamepad, telemetry and its process."""
