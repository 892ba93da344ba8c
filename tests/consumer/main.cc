// SPDX-License-Identifier: MIT
// The same as main.c in C++17, with what a C++ program would put around handles and statuses.
#include <attn.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace
{

void check(attn_status status)
{
    if (status != ATTN_OK) throw std::runtime_error(attn_status_string(status));
}

struct destroy {
    void operator()(attn_op *op) const { attn_op_destroy(op); }
};
using op_ptr = std::unique_ptr<attn_op, destroy>;

op_ptr make_op(int64_t heads, int64_t size)
{
    attn_op *op = nullptr;
    check(attn_op_create(&op, heads, heads, size, size));
    return op_ptr{op};
}

} // namespace

int main()
try {
    const std::vector<float> q{1, 0}, k{0, 1.0986123f}, v{4, 8};
    std::vector<float> out(2, -1);
    const auto op = make_op(1, 1);
    check(attn_run(op.get(), 1, 2, 2, q.data(), k.data(), v.data(), out.data()));
    const std::string_view version = attn_version();
    std::printf("libattn %.*s from C++: %.3f %.3f\n", static_cast<int>(version.size()),
                version.data(), out[0], out[1]);
    return !(std::fabs(out[0] - 7) <= 1e-5f && std::fabs(out[1] - 6) <= 1e-5f);
} catch (const std::exception &error) {
    std::puts(error.what());
    return 1;
}
