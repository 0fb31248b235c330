/* The same program as consumer.c, in C++. */
#include <dist.hpp>

#include <exception>
#include <iostream>

static_assert(__cplusplus >= 201703L, "dist::cxx requires C++17");

int main()
{
    try {
        const dist::runtime runtime;
        const dist::group_ref world = runtime.world();
        const int size = world.size();
        int sum = world.rank() + 1;
        world.all_reduce(sum);
        std::cout << "libdist " << dist_version_string() << ": sum " << sum << " over " << size << " ranks\n";
        return sum == size * (size + 1) / 2 ? 0 : 1;
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
