"""Kernels: refs, copies between memories, semaphores and pipelines, run on a machine of many devices."""
