#pragma once

// Makes `type: ResNet`, `type: ViT` and `type: Lstm` known.
void register_models();
