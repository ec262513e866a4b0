! SPDX-License-Identifier: GPL-2.0-only
!
! Loops of Fortran, compiled by flang: each iteration is executed once, loops of one region are divided alike,
! and sections are the runtime's. Prints how many iterations of 1000 thread 0 got in the last region.
program loops
  use, intrinsic :: iso_c_binding
  use omp_lib
  implicit none
  integer, parameter :: n = 1000
  integer :: times(n), first(n), second(n), round, i, last, part(2), mine
  integer(8) :: k, total
  real(8) :: sum
  interface
    subroutine pin_to(number) bind(c)
      import
      integer(c_int), value :: number
    end subroutine
  end interface

  !$omp parallel num_threads(2)
  call pin_to(omp_get_thread_num())
  !$omp end parallel
  mine = 0
  do round = 1, 4
    times = 0
    total = 0
    sum = 0
    last = -1
    !$omp parallel do num_threads(2) reduction(+:total) lastprivate(last)
    do i = 1, n
      times(i) = times(i) + 1
      total = total + i
      last = i
    end do
    call check(all(times == 1) .and. total == 500500 .and. last == n, 1)
    !$omp parallel do num_threads(2) reduction(+:sum)
    do k = n, 1_8, -3_8
      times(k) = times(k) + 1
      sum = sum + 1
    end do
    call check(count(times == 2) == 334 .and. nint(sum) == 334, 2)
    !$omp parallel num_threads(2)
    !$omp do
    do i = 1, n
      first(i) = omp_get_thread_num()
    end do
    !$omp end do nowait
    !$omp do
    do i = n, 1, -1
      second(n + 1 - i) = omp_get_thread_num()
    end do
    !$omp end do nowait
    !$omp end parallel
    call check(all(first == second), 3)
    mine = count(first == 0)
    part = -1
    !$omp parallel sections num_threads(2)
    !$omp section
    part(1) = omp_get_thread_num()
    !$omp section
    part(2) = omp_get_thread_num()
    !$omp end parallel sections
    call check(part(1) == 0 .and. part(2) == 1, 4)
    times = 0
    !$omp parallel do num_threads(2)
    do i = 5, 4
      times(1) = 1
    end do
    !$omp parallel do num_threads(2) schedule(static, 10)
    do i = 1, n
      times(i) = times(i) + omp_get_thread_num() - mod((i - 1) / 10, 2)
    end do
    call check(all(times == 0), 5)
  end do
  print '(a,i0)', 'first=', mine
contains
  subroutine check(holds, number)
    logical, intent(in) :: holds
    integer, intent(in) :: number
    if (.not. holds) then
      print '(a,i0,a,i0)', 'check ', number, ' fails in round ', round
      stop 1
    end if
  end subroutine
end program
