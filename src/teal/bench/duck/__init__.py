"""`teal bench duck`: what it costs to call a native program, here and on another machine."""
