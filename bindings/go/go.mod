// SPDX-License-Identifier: MIT
module attn

go 1.19
