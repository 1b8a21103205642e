"""Model files for devices: a torch model becomes one file that LiteRT trains, without torch or TensorFlow there."""
