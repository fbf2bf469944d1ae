/* A part of the fake, or a library that cuDNN opens by name: it only says which version it is of. */
__attribute__((visibility("default"))) int fake_part_version(void);
int fake_part_version(void) { return VERSION; }
