"""What the control plane and the emulated nodes do by themselves, without tpujob: the ground that its promises stand on."""
