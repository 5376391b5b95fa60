"""The commands, one module each: ``describe(parser)`` adds its arguments, ``run(args)`` does the work."""
