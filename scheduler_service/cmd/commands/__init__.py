"""The commands of ``scheduler-manage``: functions of (arguments, options).

``cmd.parser`` says what each does. A command returns its exit status, None: 0.
"""
